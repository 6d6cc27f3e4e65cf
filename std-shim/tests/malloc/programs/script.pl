# Hashes, sorting, patterns, long texts and children.
use strict;
my ($seed, %count, @list) = (1);
for (1 .. 60000) {
    $seed = ($seed * 1103515245 + 12345) % 2147483648;
    my $word = "w" x ($seed % 30) . $seed;
    $count{substr($word, -3)}++;
    push @list, $word;
}
print join(",", map { "$_=$count{$_}" } sort keys %count), "\n";
my $text = join " ", sort { length $a <=> length $b or $a cmp $b } @list;
my $found = () = $text =~ /\bw{5,9}(\d+)7\b/g;
(my $changed = $text) =~ s/(w+)(\d)/$2$1/g;
print length($text), " $found ", unpack("%32C*", $changed), "\n";
for my $i (1 .. 5) {
    my $pid = fork();
    exit(scalar(@list) % 7 + $i) if $pid == 0;
    waitpid($pid, 0);
    print "child ", $? >> 8, " ", `echo $i`;
}
my $deep = [];
$deep = [$deep, "x" x 100] for 1 .. 50000;
undef $deep;
print "done\n";
