"""The content of versions: entries in ranges in trees, as files on a storage. No SQL here."""
