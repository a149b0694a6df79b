//! What `bench` is told. Does no I/O.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct Bench {
    /// What to measure; all of it where nothing is named
    #[command(subcommand)]
    pub benchmark: Option<Benchmark>,
}

/// How often each contestant of a benchmark begins from nothing.
pub const SAMPLES: u32 = 5;

/// The benchmarks. Their tables are data, on stdout.
#[derive(Debug, Subcommand)]
pub enum Benchmark {
    /// Derive and publish one platform, and pull a base: requests, bytes, memory and time beside other tools, as ratios to ours
    Registry {
        /// How often each tool begins from nothing; the table shows medians
        #[arg(long, value_name = "N", default_value_t = SAMPLES, value_parser = clap::value_parser!(u32).range(1..))]
        samples: u32,
    },
    /// Build and publish 10 to 200 images on four platforms: what an image costs as their number grows
    Scale,
    /// Run the init and others as PID 1: start, memory, idling, signals, storms of orphans, size, as ratios to ours
    Init(BenchInit),
    /// Pull an image whole: what `registry` measures
    #[command(hide = true)]
    Pull {
        /// The image
        from: String,
        /// The layout
        into: PathBuf,
    },
}

/// How often the inits take turns, and how many orphans a storm has.
pub const ROUNDS: usize = 3;
/// See [`ROUNDS`].
pub const ORPHANS: usize = 20_000;

/// Arguments of `bench init`.
#[derive(Debug, Args)]
pub struct BenchInit {
    /// How often the inits take turns
    #[arg(long, value_name = "N", default_value_t = ROUNDS, value_parser = at_least_one)]
    pub rounds: usize,
    /// How many orphans a storm has
    #[arg(long, value_name = "N", default_value_t = ORPHANS, value_parser = at_least_one)]
    pub orphans: usize,
    /// Measure this file in the place of the init that is built here
    #[arg(long, value_name = "FILE")]
    pub init: Option<PathBuf>,
    /// Print all figures as JSON instead of tables
    #[arg(long)]
    pub json: bool,
    /// Print where the bytes of the init are, by section and symbol, and measure nothing
    #[arg(long, conflicts_with_all = ["rounds", "orphans", "init", "json"])]
    pub size: bool,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "expected a number from 1".to_owned())
}
