"""Grants: who may use which role until when, by whose word; asked for, approved by another, revoked, reviewed."""
