"""What a plan and a sweep are made from: what is listed, what is live, what is protected."""
