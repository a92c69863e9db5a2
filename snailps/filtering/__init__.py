"""Filtering: keep the texts that classifiers score well, in files of the input's format."""
