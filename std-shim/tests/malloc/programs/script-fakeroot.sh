# Files that belong to others and devices, for a program that is told so; its library comes before the heap's or after it.
set -e
heap=$LD_PRELOAD
make='touch file && chown 12:34 file && mknod null c 1 3 && id -u && stat -c "%n %u:%g %F" file null && rm file null'
fakeroot -- sh -c "$make"
fakeroot -- sh -c "LD_PRELOAD='$heap':\$LD_PRELOAD; $make"
fakeroot -- sh -c 'touch file && chown 12:34 file && tar cf - file' | tar tvf - --numeric-owner | cut -d' ' -f2
