//! `anabranch sim plot`: draws results that were written as JSON.

use anabranch_experiments::plots::draw_metric;

use super::args::PlotArgs;
use super::folder::Folder;
use super::merge;
use super::output::no_metric;
use crate::context::Context;
use crate::errors::Failure;

/// Draws metrics of results that were written as JSON.
pub(super) fn run(args: &PlotArgs, context: &Context) -> Result<(), Failure> {
    let runs = merge::read(&args.files, context)?;
    let mut folder = Folder::prepare(&args.into)?;
    for (index, pattern) in args.metrics.iter().enumerate() {
        if args.metrics[..index].contains(pattern) {
            continue;
        }
        let drawings = draw_metric(&runs, pattern);
        if drawings.is_empty() {
            return Err(no_metric(pattern).hint("`anabranch sim merge FILE…` prints the names of all"));
        }
        folder.save_all(drawings)?;
    }
    Ok(())
}
