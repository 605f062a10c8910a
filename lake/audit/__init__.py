"""The audit trail: rows in a `chain`, how they are appended (`trail`), `heads` kept elsewhere, and the `proof`."""
