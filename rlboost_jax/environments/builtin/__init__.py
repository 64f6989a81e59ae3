"""Tools and environments that come with the package; a file each."""
