//! Budgets inside budgets: charges along a path, limits that take effect at once, and the live bytes that pools may
//! have while they are above their limits.

mod player;
mod random;

#[test]
fn each_rule_holds_at_its_boundary_as_in_the_script() {
    crate::golden::run::<player::Player>("limits/rules.txt");
}
