"""What versions consist of: entries in ranges in trees, as files on a storage. No SQL here."""
