//! Tricks of the searches, each a named switch, so that its value can be measured by leaving it out.
//!
//! A [`Trick`] is a part of a search that affects only how good the plans are or how soon they are found: without it, plans are
//! still valid. Some tricks belong to a policy's own search, others to the search for addresses, which all policies share. The
//! means that a plan may *use* are no tricks but [`crate::Allow`]. [`Tricks`] is the set that a request leaves out; the code of a
//! trick that is left out does not run. `cargo bench --bench plans -- ablation` prints the value of each.

use super::Error;
use super::policy::Policy;
use std::fmt;
use std::str::FromStr;

/// One table: search (a policy's, or the search for addresses), variant, name, effect.
macro_rules! tricks {
    ($($search:ident: $trick:ident $name:literal $about:literal;)*) => {
        /// Part of a search that finds more, or makes it quicker.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Trick {
            $(
                #[doc = concat!("`", $name, "`: ", $about, ".")]
                $trick,
            )*
        }

        impl Trick {
            /// All tricks: those of [`Policy::Plimsoll`] in the order of its search, those of the search for addresses, and those
            /// of [`Policy::Optimal`].
            pub const ALL: &'static [Trick] = &[$(Trick::$trick),*];

            /// Returns the tricks that can affect a policy's plans: its own, and those of the search for addresses.
            pub fn of(policy: Policy) -> impl Iterator<Item = Trick> {
                Trick::ALL.iter().copied().filter(move |trick| trick.policy().is_none_or(|own| own == policy))
            }

            /// Returns the policy whose search the trick is part of; `None` for the search for addresses.
            pub fn policy(self) -> Option<Policy> {
                match self {
                    $(Trick::$trick => tricks!(@policy $search),)*
                }
            }

            /// Returns the name on the command line and in tables.
            pub fn name(self) -> &'static str {
                match self {
                    $(Trick::$trick => $name,)*
                }
            }

            /// Returns the trick's effect, in a line.
            pub fn about(self) -> &'static str {
                match self {
                    $(Trick::$trick => $about,)*
                }
            }
        }
    };
    (@policy Addresses) => { None };
    (@policy $policy:ident) => { Some(Policy::$policy) };
}

tricks! {
    Plimsoll: Seeds "seeds" "begin with the linear program of the lower bound, rounded";
    Plimsoll: Budgets "budgets" "solve that program for smaller budgets, too";
    Plimsoll: Tilts "tilts" "price equal blocks apart in that program, so that its solution is nearly whole";
    Plimsoll: Chains "chains" "cut what is recomputed together in the solution where that takes much memory";
    Plimsoll: Copies "copies" "plan a few of many equal blocks, and copy that plan to all of them";
    Plimsoll: Restarts "restarts" "begin from several seeds at several temperatures, and go on from the best of what \
                                   comes of it";
    Plimsoll: Heat "heat" "take changes that are slightly worse, with falling probability";
    Plimsoll: Trade "trade" "keep what is dear to recompute and give up what is cheap, in one change";
    Plimsoll: Exchange "exchange" "let two decisions change places";
    Plimsoll: Early "early" "recompute before an earlier op than the one that asks for it, where there is more room";
    Plimsoll: Blocks "blocks" "decide the like tensors of equal blocks alike, in one change";
    Plimsoll: Crowded "crowded" "change what is there where most memory is lacking";
    Plimsoll: Dust "dust" "decide nothing about tensors that are tiny beside the pool";
    Plimsoll: Strictness "strictness" "count what does not fit the more, the longer nothing fits";
    Plimsoll: Cutoff "cutoff" "stop timing decisions that are certainly not taken";
    Plimsoll: Lighten "lighten" "where time cannot be better, keep what need not be moved";
    Plimsoll: Margins "margins" "leave bytes free just at the ops where addresses did not fit, not everywhere";
    Plimsoll: Anew "anew" "begin again from the seeds where leaving bytes free led far astray";
    Plimsoll: Spare "spare" "leave bytes free everywhere where nothing else had addresses";
    Plimsoll: Packing "packing" "look for addresses from the order on that was best for the last plan";
    Plimsoll: Reorder "reorder" "look for addresses from no order, too, where they miss by the same bytes again";
    Plimsoll: Fewer "fewer" "search with fewer means, too, where their bound leaves room";
    Plimsoll: Exact "exact" "search small traces completely, too";
    Plimsoll: Policies "policies" "take another policy's plan where that is better";
    Plimsoll: Settle "settle" "place the chosen plan once more, so that few holes are left";
    Plimsoll: Turns "turns" "let the last bytes of a tensor in pieces stay, not the first, where addresses want it";
    Addresses: Walks "walks" "walk over holes first, where sweeps look at much";
    Addresses: Orders "orders" "best fit in several orders";
    Addresses: Climb "climb" "hill climbing over the orders of best fit";
    Addresses: Sweeps "sweeps" "sweep through time with one state and with several";
    Addresses: Tastes "tastes" "sweep again and again, with other costs by chance";
    Addresses: Tree "tree" "search completely, from the bottom of the pool up";
    Optimal: Dominance "dominance" "drop states for which a better one stands";
    Optimal: Prompt "prompt" "start every offload as early as it can";
    Optimal: Bounds "bounds" "drop states that cannot end in time";
}

impl fmt::Display for Trick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Trick {
    type Err = Error;
    fn from_str(text: &str) -> Result<Trick, Error> {
        Trick::ALL.iter().copied().find(|trick| trick.name() == text).ok_or_else(|| {
            let names: Vec<&str> = Trick::ALL.iter().map(|trick| trick.name()).collect();
            Error::usage(format_args!("`{text}` is no trick; there are {}", names.join(", ")))
        })
    }
}

/// Set of tricks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tricks(u64);

impl Tricks {
    /// The empty set.
    pub const NONE: Tricks = Tricks(0);

    /// Returns this set with one more trick.
    pub fn with(self, trick: Trick) -> Tricks {
        Tricks(self.0 | 1 << trick as u32)
    }

    /// Returns `true` if the set contains the trick.
    pub fn contains(self, trick: Trick) -> bool {
        self.0 >> trick as u32 & 1 == 1
    }
}

impl FromIterator<Trick> for Tricks {
    fn from_iter<I: IntoIterator<Item = Trick>>(tricks: I) -> Tricks {
        Tricks(tricks.into_iter().fold(0, |set, trick| set | 1 << trick as u32))
    }
}
