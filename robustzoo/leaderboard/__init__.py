"""What the zoo has, in rows: the listings of the command line and the static page."""
