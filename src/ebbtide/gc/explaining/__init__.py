"""Why a file or commit is still there, until when, and why it went."""
