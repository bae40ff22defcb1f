"""What people read on the terminal: one module for each kind of answer, all returning rich renderables."""
