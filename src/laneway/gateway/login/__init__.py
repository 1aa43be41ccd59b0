"""Who a caller is: tokens, sessions of browsers, logins without a password, and origins."""
