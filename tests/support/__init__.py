"""What several tests share, imported as ``tests.support.<module>``. Not for fixtures themselves."""
