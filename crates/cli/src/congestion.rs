//! The option that chooses the congestion control of a session's end.

use anabranch_engine::cc::RuleKind;
use anabranch_net::Config;
use clap::Args;

use crate::values;

/// The congestion control of this end.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct CongestionOption {
    /// Congestion control of what this end sends [default: auto]
    #[arg(long, value_name = "NAME", help_heading = "Network")]
    #[arg(value_parser = values::one_of::<RuleKind>(RuleKind::ALL.map(RuleKind::name)))]
    pub cc: Option<RuleKind>,
}

impl CongestionOption {
    /// These settings of a session with the chosen congestion control.
    pub fn of(self, mut session: Config) -> Config {
        session.cc.rule = self.cc.unwrap_or(session.cc.rule);
        session
    }
}
