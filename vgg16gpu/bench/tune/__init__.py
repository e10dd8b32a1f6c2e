"""Which tile is fastest for each layer, by measurement: layers, numbers to check them with, a device to time them."""
