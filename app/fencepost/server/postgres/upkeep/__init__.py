"""What operators and the background do with marks and generations: raise, reset, prune."""
