"""Arvados's wire format: its API (`server`), and what the store keeps for it (`store`)."""
