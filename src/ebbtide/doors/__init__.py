"""Doors: wire formats of other programs, one package for each. Nothing else imports them: they are
entry points (`server.doors`)."""
