"""What users write and read: models, clusters, layouts, units, and exact errors."""
