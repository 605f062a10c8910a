"""Sending: segments go to the store, alone or in packs."""
