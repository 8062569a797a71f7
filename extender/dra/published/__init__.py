"""What drivers publish in ResourceSlices, read into the devices of a node."""
