"""What a user gives, turned into a model, a cluster, a job: by name, path, launch file, configuration or standard input."""
