"""Projects, the collections in them, and the contents of collections."""
