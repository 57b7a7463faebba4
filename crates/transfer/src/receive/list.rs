//! The sender's list, as it comes and as the user wants it.

use tokio::io::{AsyncRead, AsyncWrite};

use super::ReceiveOptions;
use crate::control::ControlLink;
use crate::error::TransferError;
use crate::manifest::{Entry, EntryKind, FileMeta, Limits, List, ManifestBuilder};
use crate::message::Control;
use crate::report::Report;

/// Drops what the user does not want from the list, and notes it.
pub(super) fn drop_unwanted(list: &mut List, options: &ReceiveOptions, report: &Report) {
    if !options.attributes {
        let mut dropped: Vec<u32> = list.attributes.drain().map(|(index, _)| index).collect();
        dropped.sort_unstable();
        let dropped = dropped.iter().filter_map(|index| list.entries.get(*index as usize));
        dropped.for_each(|entry| report.drop_attributes(&entry.path));
    }
    if !options.hard_links {
        report.copy_links(list.links.len());
        list.links.clear();
    }
}

pub(crate) async fn read_list<S: AsyncRead + AsyncWrite + Unpin>(
    control: &mut ControlLink<S>,
    limits: &Limits,
    report: &Report,
) -> Result<List, TransferError> {
    let mut builder = ManifestBuilder::new(limits);
    loop {
        match control.recv().await? {
            Control::Entry(entry) => builder.push(entry)?,
            Control::Attribute(attribute) => builder.add_attribute(attribute)?,
            Control::HardLink(first) => builder.add_link(first)?,
            Control::LeftOut(what) => {
                builder.leave_out(&what.path)?;
                if what.missed {
                    report.fail_there(what.path, what.reason);
                } else {
                    report.leave_out(&what);
                }
            }
            Control::ListEnd => return Ok(builder.finish()),
            Control::Abort(reason) => return Err(TransferError::Peer(reason)),
            _ => return Err(TransferError::protocol("a control message in the middle of the list")),
        }
    }
}

/// True for a share that the sender can read only once. Other files of unknown length have a time.
pub(super) fn is_stream(entries: &[Entry]) -> bool {
    let is_stream = |meta: &FileMeta| meta.size.is_none() && meta.modified.is_none();
    entries.iter().any(|entry| matches!(&entry.kind, EntryKind::File(meta) if is_stream(meta)))
}
