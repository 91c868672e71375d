//! The moves, proved: an exhaustive search over a small world, and properties of random rows.

mod properties;
mod search;
mod world;
