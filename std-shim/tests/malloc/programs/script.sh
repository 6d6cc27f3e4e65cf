# Variables, arrays, pipes and many children.
declare -A count
for ((i = 0; i < 5000; i++)); do
    seed=$(((seed * 1103515245 + 12345) % 2147483648))
    count[$((seed % 100))]+=$seed
    list+=("word $seed")
done
for key in "${!count[@]}"; do echo "$key ${#count[$key]} ${count[$key]//7/seven}"; done | sort -n | cksum
printf '%s\n' "${list[@]}" | sort -k2n | uniq | awk '{ sum += length($0); words[$2 % 10]++ } END { print sum; for (i = 0; i < 10; i++) print i, words[i] }'
for i in {1..20}; do
    text=$(seq 1 $((i * 200)) | tr '\n' ' ')
    echo ${#text} | (read n; echo "sub $n")
done
( sleep 0.01 & wait; echo waited )
text=$(head -c 300000 /dev/zero | tr '\0' x)
echo ${#text} "${text/xxx/y}" | cksum
