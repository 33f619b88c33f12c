//! How long does a schedule take?
