"""The JSON bodies of requests and answers, by topic. Not for: what the requests do (`routes`)."""
