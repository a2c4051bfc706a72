"""What requests and answers look like, by topic. Not for: what they do."""
