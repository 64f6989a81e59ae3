"""What all other packages speak of: the names of things (`identities`)."""
