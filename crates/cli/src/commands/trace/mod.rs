//! `anabranch trace`: reports which routes to a node share routers, and which to use together.

mod args;
mod known;
mod map;
mod sets;
mod survey;
mod text;
mod traces;

use anabranch_overlay::select::ChoiceLimits;

use crate::errors::{Failure, Kind};
use crate::interrupt;
use crate::ui::out::{self, Stream};

pub use args::TraceArgs;
use known::Asking;

/// Traces routes, chooses among them and explains the choice.
pub fn run(args: &TraceArgs) -> Result<(), Failure> {
    let elsewhere = traces::load(&args.traces)?;
    let (args, known, own) = anabranch_node::Threads::start()?.block_on(async {
        let measure = async {
            let mut args = args.clone();
            for named in args.named.clone() {
                args.relays.push(named.chain(args.node.0).await?);
            }
            let asking = Asking::begin(&args).await?;
            let measured = tokio::try_join!(asking.known(&args), traces::measure(&args, asking.addresses()));
            let (known, own) = measured?;
            Ok((args, known, own))
        };
        tokio::select! {
            biased;
            () = interrupt::requested() => Err(Failure::new(Kind::Interrupted, "the ways are not all traced")),
            measured = measure => measured,
        }
    })?;
    let args = &args;
    if let Some(file) = &args.save {
        traces::save(file, &own)?;
    }
    let limits = ChoiceLimits { beta: args.beta, k: args.most };
    let (report, map) = survey::report(args, (&own, &elsewhere, &known), &limits);
    if let Some(file) = &args.graph {
        std::fs::write(file, map.to_svg()).map_err(|error| Failure::file("write", file, &error))?;
    }
    if args.json { Stream::Stdout.json(&report) } else { out::page(&text::render(&report)) }
}
