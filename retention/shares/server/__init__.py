"""Delta Sharing: shares of roles by the open protocol, to who holds a profile that has not expired."""
