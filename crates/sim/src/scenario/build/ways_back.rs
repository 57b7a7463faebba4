//! Ways back that nothing takes: where acknowledgements cross no link, what is said of these changes nothing.

use std::collections::BTreeSet;

use super::Builder;
use crate::scenario::error::ScenarioError;
use crate::scenario::model::{Acks, Way};

impl Builder<'_> {
    /// Refuses what is said of a link's way back that nothing takes, as acknowledgements do not. Where routes are found, and not
    /// given, another seed may find one that does.
    pub(super) fn ways_back(&self) -> Result<(), ScenarioError> {
        let file = self.file;
        let are_found = file.topology.is_some()
            || file.flow.iter().any(|flow| flow.from.is_some())
            || file.arrivals.iter().any(|arrivals| arrivals.from.is_some());
        if file.transport.acks != Some(Acks::Outside) || are_found {
            return Ok(());
        }
        let taken = self.taken();
        let is_idle = |name: &str| {
            let cable = self.graph.cable("link", name);
            cable.is_ok_and(|cable| !taken.contains(&(cable as u32 * 2 + 1)))
        };
        let refused = |key: String, name: &str| {
            ScenarioError::new(key, format!("nothing comes back over \"{name}\"")).hint(
                "with `acks = \"outside\"` acknowledgements cross no link: take it out, or say `acks = \"same-path\"`",
            )
        };
        for (index, link) in file.link.iter().enumerate() {
            if link.back.is_some() && is_idle(&link.name) {
                let error = refused(format!("link.{}.back", link.name), &link.name);
                return Err(self.locate(error, "link", index));
            }
        }
        for (index, event) in file.event.iter().enumerate() {
            if event.way == Some(Way::Back) && is_idle(&event.link) {
                return Err(self.locate(refused("event.way".to_owned(), &event.link), "event", index));
            }
        }
        Ok(())
    }

    /// The links that something crosses.
    fn taken(&self) -> BTreeSet<u32> {
        let plan = &self.built.plan;
        let flows = plan.flows.iter().flat_map(|flow| &flow.paths);
        let paths = flows.chain(plan.arrivals.iter().flat_map(|arrivals| &arrivals.paths));
        let bursts = plan.bursts.iter().flat_map(|burst| &burst.links);
        paths.flat_map(|path| path.forward.iter().chain(&path.back)).chain(bursts).copied().collect()
    }
}
