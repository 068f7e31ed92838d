"""What every other part uses: errors, seeds, files."""
