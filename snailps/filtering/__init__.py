"""Texts that classifiers keep: from files to files of the same format, with a report."""
