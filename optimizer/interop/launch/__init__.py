"""What the importers and exporters of launch files share: words, shell, defaults, the export itself."""
