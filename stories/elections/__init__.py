"""The controller's decisions about one partition."""
