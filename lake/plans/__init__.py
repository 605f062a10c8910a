"""Numbered plans: written before anything is done, verified, carried out by whoever finds them."""
