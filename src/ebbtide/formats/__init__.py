"""Kinds of repository, each as one class that gives the collector its five relations."""
