//! What changes nothing, as links' ways that nothing takes. A sweep may say it for the sake of another of its variants.

use super::{Builder, locate};
use crate::scenario::error::ScenarioError;
use crate::scenario::model::{Acks, Way};
use anabranch_sim::network::PathPlan;

/// What changes nothing, and the table that says it.
#[derive(Clone, Debug)]
pub(crate) struct Idle {
    error: ScenarioError,
    pub(super) table: &'static str,
    pub(super) index: usize,
    /// Whether a variant that says it is wrong, whatever others say.
    pub(crate) is_wrong: bool,
}

impl Idle {
    /// The error, with its line in what was read.
    pub(crate) fn told(&self, text: &str) -> ScenarioError {
        locate(text, self.error.clone(), (self.table, self.index))
    }

    /// Which of the tables of its name, and the key in full: alike in all variants of a file.
    pub(crate) fn place(&self) -> (usize, String) {
        (self.index, self.error.key.clone())
    }
}

impl Builder<'_> {
    /// Notes that what the table that is being built says changes nothing.
    pub(super) fn note(&mut self, error: ScenarioError) {
        self.note_of("", 0, error);
    }

    pub(super) fn note_of(&mut self, table: &'static str, index: usize, error: ScenarioError) {
        self.idle.push(Idle { error, table, index, is_wrong: false });
    }

    /// Notes what is wrong as it is, but may be mended by what is set.
    pub(super) fn note_wrong(&mut self, table: &'static str, index: usize, error: ScenarioError) {
        self.idle.push(Idle { error, table, index, is_wrong: true });
    }

    /// Notes the ways that sessions may take: over these paths, and over those as short between two nodes, which another seed may
    /// find. What is striped below a session comes back over the first of its paths alone.
    pub(super) fn offer(
        &mut self,
        paths: &[PathPlan],
        (from, to): (Option<&String>, Option<&String>),
        is_striped: bool,
    ) {
        let returning = if is_striped { 1 } else { paths.len() };
        for (index, path) in paths.iter().enumerate() {
            self.taken.extend(&path.forward);
            let back = path.forward.iter().filter(|_| index < returning).map(|link| link ^ 1);
            self.returning.extend(back);
        }
        let node = |name: Option<&String>| self.graph.find_node(name?);
        let (Some(from), Some(to)) = (node(from), node(to)) else { return };
        let between = self.graph.links_between(from, to);
        self.returning.extend(between.iter().map(|link| link ^ 1));
        self.taken.extend(between);
    }

    /// Notes what is said of a way of a link that nothing takes, where something takes the other. Sessions of a pattern may take
    /// any.
    pub(super) fn idle_ways(&mut self) {
        let file = self.file;
        if !file.traffic.is_empty() {
            return;
        }
        if file.links.loss.is_some() && self.nothing_goes_there() {
            let hint = "what crosses links comes back over them: take it out, or say it in each [[link]], as `back = { loss = … }`";
            let error = ScenarioError::new("links.loss", "nothing goes there over any link").hint(hint);
            self.note_of("links", 0, error);
        }
        for (index, link) in file.link.iter().enumerate() {
            let idle = match self.idle_way(&link.name) {
                Some(Way::Back) => link.back.is_some().then_some("back"),
                Some(Way::There) => link.loss.is_some().then_some("loss"),
                None => None,
            };
            if let Some(key) = idle {
                let error = self.untaken(format!("link.{}.{key}", link.name), &link.name);
                self.note_of("link", index, error);
            }
        }
        for (index, event) in file.event.iter().enumerate() {
            let idle = match (self.idle_way(&event.link), event.way) {
                (Some(idle), Some(way)) => (idle == way).then_some("event.way"),
                // Of what is said of no way, loss is of the way there.
                (Some(Way::There), None) => event.loss.is_some().then_some("event.loss"),
                _ => None,
            };
            if let Some(key) = idle {
                let error = self.untaken(key.to_owned(), &event.link);
                self.note_of("event", index, error);
            }
        }
    }

    /// The way of a link that nothing takes, if something takes the other.
    fn idle_way(&self, name: &str) -> Option<Way> {
        let there = self.graph.find_cable(name)? as u32 * 2;
        match [there, there + 1].map(|link| self.is_taken(link)) {
            [true, false] => Some(Way::Back),
            [false, true] => Some(Way::There),
            _ => None,
        }
    }

    /// Whether links are crossed backwards alone.
    fn nothing_goes_there(&self) -> bool {
        let links = self.graph.cables.len() as u32 * 2;
        let mut there = (0..links).step_by(2);
        !self.taken.is_empty() && !there.any(|link| self.is_taken(link))
    }

    fn is_taken(&self, link: u32) -> bool {
        let is_outside = self.file.transport.acks == Some(Acks::Outside);
        self.taken.contains(&link) || (!is_outside && self.returning.contains(&link))
    }

    /// The error for what is said of the way of this link that nothing takes.
    fn untaken(&self, key: String, name: &str) -> ScenarioError {
        let back = self.graph.find_cable(name).map(|cable| cable as u32 * 2 + 1);
        let (message, hint) = match self.idle_way(name) {
            Some(Way::There) => (
                format!("nothing goes there over \"{name}\""),
                "what crosses it comes back: take it out, or say it of the way back, as `back = { … }` or `way = \"back\"`",
            ),
            _ if back.is_some_and(|back| self.returning.contains(&back)) => (
                format!("nothing comes back over \"{name}\""),
                "with `acks = \"outside\"` acknowledgements cross no link: take it out, or say `acks = \"same-path\"`",
            ),
            _ => (
                format!("nothing comes back over \"{name}\""),
                "neither plain packets nor striped ones are acknowledged over it: take it out, or say it of the way there",
            ),
        };
        ScenarioError::new(key, message).hint(hint)
    }
}

#[cfg(test)]
mod tests {
    use crate::scenario::{Scenario, variants};

    const OUTSIDE: &str = "transport.acks = \"outside\"\n";
    /// A link between `a` and `b`.
    const X: &str = "[[link]]\nname = \"x\"\nrate = \"1 Mbit/s\"\nbetween = [\"a\", \"b\"]\n";
    /// A link between `b` and `c`.
    const Y: &str = "[[link]]\nname = \"y\"\nrate = \"1 Mbit/s\"\nbetween = [\"b\", \"c\"]\n";
    /// A link without a rate, which nothing crosses.
    const Z: &str = "[[link]]\nname = \"z\"\ndelay = \"1 ms\"\n";
    const BACK: &str = "back = { rate = \"2 Mbit/s\" }\n";
    const EVENT: &str = "[[event]]\nat = \"500 ms\"\nlink = \"x\"\n";

    fn flow(name: &str, paths: &str) -> String {
        format!("[[flow]]\nname = \"{name}\"\npaths = {paths}\n")
    }

    fn told(parts: &[&str]) -> Option<String> {
        let text = format!("duration = \"1 s\"\n{}", parts.concat());
        Scenario::parse(&text, "n").map_err(|error| error.to_string()).err()
    }

    /// How many variants there are, or what is said of them.
    fn sweep(parts: &[&str], settings: &[&str]) -> Result<usize, String> {
        let text = format!("duration = \"1 s\"\n{}", parts.concat());
        let base = Scenario::parse_base(&text, "n").expect("right");
        let settings: Vec<_> = settings.iter().map(|text| text.parse().expect("a setting")).collect();
        variants(&base, &settings).map(|found| found.len()).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn is_told(parts: &[&str], start: &str) {
        let told = told(parts);
        assert!(told.as_ref().is_some_and(|told| told.starts_with(start)), "{told:?}");
    }

    #[test]
    fn ways_back_that_nothing_takes_are_told() {
        let (f, found) = (flow("f", "[\"x\"]"), "[[flow]]\nname = \"f\"\nfrom = \"a\"\nto = \"b\"\n");
        let event = format!("{EVENT}delay = \"1 ms\"\nway = \"back\"\n");
        for flow in [&f, found] {
            is_told(&[OUTSIDE, X, BACK, flow], "n:7: link.x.back: nothing comes back over \"x\"\n");
            assert_eq!(told(&[X, BACK, flow, &event]), None);
        }
        is_told(&[OUTSIDE, X, &f, &event], "n:14: event.way: nothing comes back over \"x\"\n");
        // What goes both ways there takes each, and a link that nothing crosses may be said to have anything.
        assert_eq!(told(&[OUTSIDE, X, BACK, Y, &f, &flow("g", "[[\"y\", \"x\"]]"), &event]), None);
        assert_eq!(told(&[OUTSIDE, X, Y, BACK, &f]), None);
        // Plain packets do not come back, nor what is striped over another path than the first.
        is_told(
            &[X, BACK, "[[cbr]]\nname = \"c\"\npath = \"x\"\nrate = \"1 kbit/s\"\n"],
            "n:6: link.x.back: nothing",
        );
        let striped = format!("{}striping = {{ scheme = \"round-robin\" }}\n", flow("f", "[\"y\", \"x\"]"));
        is_told(&[X, BACK, Y, &striped], "n:6: link.x.back: nothing comes back over \"x\"\n");
        // Which of several ways as short is taken is for the seed to say.
        let other = "[[link]]\nname = \"z\"\nrate = \"1 Mbit/s\"\nbetween = [\"b\", \"a\"]\n";
        assert_eq!(told(&[OUTSIDE, X, other, BACK, found]), None);
        is_told(&[OUTSIDE, X, BACK, other, found], "n:7: link.x.back: nothing comes back over \"x\"\n");
    }

    #[test]
    fn ways_there_that_nothing_takes_are_told() {
        let reversed = flow("f", "[[\"y\", \"x\"]]");
        let lossy = "loss = \"1 %\"\n";
        is_told(&[OUTSIDE, X, lossy, Y, &reversed], "n:7: link.x.loss: nothing goes there over \"x\"\n");
        is_told(
            &[OUTSIDE, X, Y, &reversed, EVENT, lossy],
            "n:17: event.loss: nothing goes there over \"x\"\n",
        );
        let down = "way = \"there\"\ndown = true\n";
        is_told(&[OUTSIDE, X, Y, &reversed, EVENT, down], "n:17: event.way: nothing goes there over \"x\"\n");
        assert_eq!(told(&[X, lossy, Y, &reversed, EVENT, down]), None);
        assert_eq!(told(&[OUTSIDE, X, Y, &reversed, EVENT, "down = true\n"]), None);
        assert_eq!(told(&[OUTSIDE, X, BACK, Y, &reversed]), None);
        let usual = "[links]\nloss = \"1 %\"\n";
        is_told(&[OUTSIDE, X, Y, &reversed, usual], "n:15: links.loss: nothing goes there over any link\n");
        assert_eq!(told(&[X, Y, &reversed, usual]), None);
    }

    #[test]
    fn a_path_that_flows_might_be_routed_over_counts_as_taken() {
        let other = "[[link]]\nname = \"z\"\nrate = \"9 Mbit/s\"\nbetween = [\"a\", \"c\"]\n";
        let routed = format!("{}flow_routing = true\n", flow("f", "[[\"z\"], [\"x\", \"y\"]]"));
        let reversed = Y.replace("[\"b\", \"c\"]", "[\"c\", \"b\"]");
        assert_eq!(told(&[OUTSIDE, X, &reversed, BACK, other, &routed]), None);
        let alone = format!("{}flow_routing = true\n", flow("f", "[\"x\"]"));
        is_told(&[X, &alone], "n:9: flow.f.flow_routing: there is one path");
    }

    #[test]
    fn a_sweep_may_say_what_changes_something_in_one_of_its_variants() {
        let (f, within) = (flow("f", "[\"x\"]"), "paths_within = \"9 ms\"\n");
        assert_eq!(sweep(&[X, BACK, &f], &["transport.acks=same-path,outside"]), Ok(2));
        let both = sweep(&[X, BACK, &f], &["transport.acks=outside", "flow.f.rule=lia,olia"]).unwrap_err();
        assert!(
            both.starts_with("n --set transport.acks=outside --set flow.f.rule=lia: link.x.back: nothing"),
            "{both}"
        );
        // What the file says has its line there, whatever else is set.
        let own = sweep(&[OUTSIDE, X, BACK, &f], &["warm_up=1 ms,2 ms"]).unwrap_err();
        assert!(own.starts_with("n:7: link.x.back: nothing comes back over \"x\"\n"), "{own}");
        let two = flow("f", "[\"x\", \"y\"]");
        assert_eq!(sweep(&[X, Y, &two, within], &["flow.f.paths=[\"x\"],[\"x\",\"y\"]"]), Ok(2));
        assert!(sweep(&[X, Y, &two, within], &["flow.f.paths=[\"x\"]"]).is_err());
        // Also where the file itself has no use for it; and of two events each may be for one variant.
        assert_eq!(sweep(&[OUTSIDE, X, BACK, &f], &["transport.acks=outside,same-path"]), Ok(2));
        assert!(sweep(&[OUTSIDE, X, BACK, &f], &[]).is_err());
        let of_y = EVENT.replace("\"x\"", "\"y\"");
        let events =
            [EVENT, &of_y].map(|event| format!("{event}delay = \"1 ms\"\nway = \"back\"\n")).concat();
        let (there, other) = ("[[\"x\",\"y\"]]", "[[\"y\",\"x\"]]");
        let reversed = Y.replace("[\"b\", \"c\"]", "[\"c\", \"b\"]");
        let swept = ["transport.acks=outside", &format!("flow.f.paths={there},{other}")];
        assert_eq!(sweep(&[X, &reversed, &flow("f", there), &events], &swept), Ok(2));
        let either = sweep(&[OUTSIDE, X, Y, &two, &events[..events.len() / 2]], &["event.*.link=x,y"]);
        assert!(either.unwrap_err().contains("event.way: nothing comes back over \"x\""));
        let share = format!(
            "{f}datagrams = {{ rate = \"8 kbit/s\", size = \"99 B\", mode = \"protected\", most = \"1 %\" }}\n"
        );
        assert!(sweep(&[X, &share], &["flow.f.datagrams.block=2,3"]).is_err());
    }

    #[test]
    fn what_is_set_for_all_names_changes_something_of_one() {
        let f = flow("f", "[\"x\"]");
        let sized = flow("f", "[\"z\"]") + "size = \"1 kB\"\n";
        let cbr = "[[cbr]]\nname = \"c\"\npath = \"y\"\nrate = \"1 kbit/s\"\n";
        assert_eq!(sweep(&[X, Y, &f, cbr], &["link.*.back.loss=1 %,2 %"]), Ok(2));
        for (parts, set) in [
            ([OUTSIDE, X, &f], "link.*.back.loss=1 %,2 %"),
            (["", X, &f], "flow.*.paths_within=1 ms,2 ms"),
            (["", X, &f], "flow.*.flow_routing=true"),
            (["", Z, &sized], "link.*.queue=9 packets,2 packets"),
            (["", Z, &sized], "link.*.back.aqm=codel"),
        ] {
            let told = sweep(&parts, &[set]).unwrap_err();
            assert!(told.starts_with(&format!("n --set {}", set.split(',').next().unwrap())), "{told}");
        }
        assert_eq!(sweep(&[X, Z, "queue = \"1 BDP\"\n", &f], &["link.*.queue=9 packets,2 packets"]), Ok(2));
        // It does not stand for what the file says elsewhere.
        let (back, lossy) = (flow("f", "[[\"y\", \"x\"]]"), "loss = \"1 %\"\n");
        let own = sweep(&[OUTSIDE, X, lossy, Y, &back], &["link.*.back.loss=1 %,2 %"]).unwrap_err();
        assert!(own.starts_with("n:7: link.x.loss: nothing goes there"), "{own}");
        let own = sweep(&[X, Z, "aqm = \"codel\"\n", &f], &["link.*.queue=9 packets,2 packets"]).unwrap_err();
        assert!(own.starts_with("n:9: link.z.aqm: nothing waits"), "{own}");
    }

    #[test]
    fn queues_of_links_without_a_rate_are_told() {
        let f = flow("f", "[\"x\"]");
        assert_eq!(sweep(&[X, Z, &f], &["link.*.queue=9 packets,1 BDP"]), Ok(2));
        assert!(sweep(&[X, Z, &f], &["link.z.queue=9 packets,1 BDP"]).is_err());
        is_told(&[X, Z, "queue = \"1 BDP\"\n", &f], "n:9: link.z.queue: a BDP of an unlimited rate\n");
        // That of a way of which the other says otherwise.
        let (queue, back) =
            ("queue = \"9 packets\"\n", "back = { rate = \"1 Mbit/s\", queue = \"1 BDP\" }\n");
        is_told(&[X, Z, queue, back, &f], "n:9: link.z.queue: nothing waits");
        assert_eq!(told(&[X, Z, queue, &back.replace(", queue = \"1 BDP\"", ""), &f]), None);
        // How long a BDP is has to be known from the start.
        let rated = EVENT.replace('x', "z") + "rate = \"1 Mbit/s\"\n";
        let there = format!("{rated}way = \"there\"\n");
        is_told(&[X, Z, "queue = \"1 BDP\"\n", back, &f, &there], "n:9: link.z.queue: a BDP of an unlimited");
        let usual = "[links]\nqueue = \"1 BDP\"\ndelay = \"1 ms\"\n";
        let lot = "[topology]\nkind = \"parking-lot\"\nhops = 1\n";
        let found = "[[flow]]\nname = \"f\"\nfrom = \"n0\"\nto = \"n1\"\nsize = \"1 kB\"\n";
        let rated = rated.replace("\"z\"", "\"hop0\"");
        is_told(&[usual, lot, found, &rated], "n:3: links.queue: a BDP of an unlimited rate\n");
        for (of_link, is_known) in
            [("rate = \"9 Mbit/s\"\n", true), ("queue = \"9 packets\"\n", true), ("loss = \"1 %\"\n", false)]
        {
            let parts = [usual, lot, found, "[[link]]\nname = \"hop0\"\n", of_link, &rated];
            assert_eq!(told(&parts).is_none(), is_known, "{of_link}");
        }
        assert_eq!(sweep(&[usual, lot, found, &rated], &["links.rate=1 Mbit/s,2 Mbit/s"]), Ok(2));
        assert_eq!(sweep(&[usual, lot, found, &rated], &["links.queue=9 packets,2 packets"]), Ok(2));
        let one = sweep(&[usual, lot, found, &rated], &["links.queue=9 packets,1 BDP"]).unwrap_err();
        assert!(one.starts_with("n:3: links.queue: a BDP of an unlimited rate"), "{one}");
        is_told(&[usual, lot, found], "n:3: links.queue: a BDP of an unlimited rate\n");
        assert_eq!(sweep(&[usual, lot, found], &["links.rate=1 Mbit/s,2 Mbit/s"]), Ok(2));
    }

    #[test]
    fn what_stops_after_the_end_is_told_unless_another_variant_lasts_longer() {
        let (f, stop) = (flow("f", "[\"x\"]"), "stop = \"2 s\"\n");
        is_told(&[X, &f, stop], "n:9: flow.f.stop: after the end: it never stops\n");
        assert_eq!(told(&[X, &f, "stop = \"1 s\"\n"]), None);
        assert_eq!(sweep(&[X, &f, stop], &["duration=1 s,3 s"]), Ok(2));
    }
}
