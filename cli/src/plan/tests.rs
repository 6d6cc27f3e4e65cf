use larder_core::Align;
use larder_core::pack::Lifetime;

use super::csv::read;
use super::steps;
use larder_trace as trace;

fn lifetimes(text: &str) -> Vec<Lifetime> {
    read(text.as_bytes()).expect("a good file").1
}

#[test]
fn columns_may_stand_in_any_order_and_some_may_be_missing() {
    let plain = lifetimes("id,lower,upper,size\n0,1,5,64\n");
    assert_eq!(plain, [Lifetime::new(1, 5, 64)]);
    let full =
        lifetimes("size,id,hint,upper,lower,offset,alignment\n64,a,-1,5,1,128,16\n64,b,,5,1,,\n");
    let mut pinned = Lifetime::new(1, 5, 64);
    pinned.pinned = Some(128);
    pinned.align = Align::new(16).expect("a power of two");
    assert_eq!(full, [pinned, Lifetime::new(1, 5, 64)]);
}

#[test]
fn a_step_holds_what_it_allocates_until_its_end() {
    let text = "a 0 8\ns 0\na 1 16\nf 0\na 2 32\nf 1\ns 1\nf 2\ns 2\na 3 4\ns 3\n";
    let trace = trace::read("t.trace".as_ref(), text.as_bytes()).expect("a good trace");
    let problems = steps::problems(&trace);
    let names: Vec<_> = problems
        .iter()
        .map(|problem| problem.name.as_str())
        .collect();
    assert_eq!(names, ["t step 0", "t step 2"]);
    let first = [Lifetime::new(0, 3, 16), Lifetime::new(2, 4, 32)];
    assert_eq!(problems[0].lifetimes, first);
    assert_eq!(problems[1].lifetimes, [Lifetime::new(0, 1, 4)]);
}
