//! Metrics of links, of arriving sessions and of plain packets, and distributions.

use std::collections::BTreeMap;

use super::results::Measured;
use super::sheet::{Sheet, mean, quantile, ratio};
use crate::scenario::build::{CableName, Group};
use crate::scenario::course::{Distribution, distribution};
use anabranch_sim::network::Network;

impl Measured {
    pub(super) fn links(&self, sheet: &mut Sheet, cables: &[CableName]) {
        let mut classes: BTreeMap<&str, Vec<(Option<f64>, f64)>> = BTreeMap::new();
        for (index, cable) in cables.iter().enumerate() {
            for way in 0..2 {
                let (loss, used) = self.link(index * 2 + way);
                if cable.generated {
                    classes.entry(cable.class()).or_default().push((loss, used));
                    continue;
                }
                let name = if way == 0 { cable.name.clone() } else { format!("{}.back", cable.name) };
                let mut place = sheet.of("link", &name);
                place.put("loss", loss);
                place.put("utilisation", used);
                if way == 0 {
                    place.put("queue_pkt", self.queues[index * 2].known());
                    place.put("queue_max_pkt", self.after.links[index * 2].max_queue_packets as f64);
                }
            }
        }
        for (class, links) in classes {
            let mut losses: Vec<f64> = links.iter().filter_map(|link| link.0).collect();
            losses.sort_by(f64::total_cmp);
            let mut place = sheet.of("links", class);
            place.put("loss_mean", mean(&losses));
            for (name, share) in [("loss_p50", 0.5), ("loss_p90", 0.9), ("loss_p99", 0.99), ("loss_max", 1.0)]
            {
                place.put(name, quantile(&losses, share));
            }
            place.put("utilisation_mean", mean(&links.iter().map(|link| link.1).collect::<Vec<_>>()));
        }
    }

    /// Distributions of goodput over flows, of loss over links, and of completion times over files.
    pub(super) fn distributions(
        &self,
        groups: &[Group],
        cables: &[CableName],
        files: &[(String, Vec<f64>)],
    ) -> Vec<Distribution> {
        let mut found = Vec::new();
        let mut first = 0;
        for group in groups {
            let rates = (first..first + group.count).map(|flow| self.mbit_s(self.bytes(flow))).collect();
            if group.count > 1 {
                found.extend(distribution(&format!("goodput of each flow of {}, Mbit/s", group.name), rates));
            }
            first += group.count;
        }
        let mut classes: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (index, cable) in cables.iter().enumerate().filter(|(_, cable)| cable.generated) {
            let losses = (0..2).filter_map(|way| self.link(index * 2 + way).0);
            classes.entry(cable.class()).or_default().extend(losses.map(|loss| 100.0 * loss));
        }
        let losses = classes.into_iter().map(|(class, losses)| (format!("loss on links {class}, %"), losses));
        let times =
            files.iter().map(|(name, times)| (format!("completion time of {name}, s"), times.clone()));
        found.extend(losses.chain(times).filter_map(|(of, values)| distribution(&of, values)));
        found
    }

    /// The share of offered packets that were lost (`None` without packets), and the utilisation: the share of time in which
    /// the link was sending.
    fn link(&self, link: usize) -> (Option<f64>, f64) {
        let (before, after) = (&self.before.links[link], &self.after.links[link]);
        let loss = ratio(
            after.dropped.total() - before.dropped.total(),
            after.offered.packets - before.offered.packets,
        );
        let busy = self.after.busy[link].saturating_sub(self.before.busy[link]);
        (loss, busy.as_secs_f64() / self.span.as_secs_f64())
    }

    /// Completion times of the files completed while measuring, in seconds.
    pub(super) fn completion_times(&self, network: &Network, source: usize) -> Vec<f64> {
        let done = &network.arrivals(source).completed[self.before.arrivals[source].completed..];
        done.iter().map(|file| file.1.as_secs_f64()).collect()
    }

    pub(super) fn sources(
        &self,
        sheet: &mut Sheet,
        network: &Network,
        arrivals: &[String],
        bursts: &[String],
    ) {
        for (index, name) in arrivals.iter().enumerate() {
            let (before, after) = (&self.before.arrivals[index], &self.after.arrivals[index]);
            let mut place = sheet.of("arrivals", name);
            place.put("arrived", (after.arrived - before.arrived) as f64);
            place.put("completed", (after.completed - before.completed) as f64);
            place.put("refused", (after.refused - before.refused) as f64);
            place.put("goodput_mbit_s", self.mbit_s(after.bytes - before.bytes));
            let mut times = self.completion_times(network, index);
            times.sort_by(f64::total_cmp);
            place.put("completion_s", mean(&times));
            place.put("completion_p50_s", quantile(&times, 0.5));
            place.put("completion_p99_s", quantile(&times, 0.99));
        }
        for (index, name) in bursts.iter().enumerate() {
            let (before, after) = (self.before.bursts[index], self.after.bursts[index]);
            let sent = after.sent - before.sent;
            // Counts packets that arrived in the interval: about as many are under way at its beginning as at its end.
            let lost = after.lost - before.lost;
            let ended = lost + (after.received - before.received);
            let mut place = sheet.of("cbr", name);
            place.put("sent_pkt_s", sent as f64 / self.span.as_secs_f64());
            place.put("loss", ratio(lost, ended));
        }
    }
}
