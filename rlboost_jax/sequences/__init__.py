"""What all other packages speak of: `identities` (names of things), `endings` (of responses),
`sequence` (which tokens were sampled, and which given), `shared_limits`."""
