"""Grace: applied retention plans cancelled while their files are kept, and purged when that is over."""
