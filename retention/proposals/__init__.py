"""What was proposed about data, who approved it, and what was done."""
