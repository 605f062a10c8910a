"""Proposals: their registers, approvals, signatures and application."""
