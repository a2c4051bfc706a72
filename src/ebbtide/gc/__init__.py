"""The collector: plans which files to delete, verifies the plan, and deletes the files."""
