"""What operations cost (`laneway bench --costs`), and what a fleet needs (`laneway capacity`)."""
