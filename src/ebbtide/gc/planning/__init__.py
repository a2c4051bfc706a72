"""Makes plans: decides on commits, finds the candidates, and checks the gates."""
