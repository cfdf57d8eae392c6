"""Programs on top of the SDK and its exporters: `pellucid demo` and `pellucid doctor`."""
