// Command pause waits to be told to stop. Other words make it ask one thing and end: 0 for yes, 1 for no.
//
//	pause                 wait for SIGTERM
//	pause sleep SECONDS   end by itself
//	pause lookup NAME     the addresses of a name
//	pause dial HOST:PORT  whether a connection comes about within 3 s
package main

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM, syscall.SIGINT)
	if len(os.Args) < 3 {
		<-told
		return
	}
	if err := ask(os.Args[1], os.Args[2], told); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func ask(verb, what string, told chan os.Signal) error {
	switch verb {
	case "sleep":
		length, err := time.ParseDuration(what + "s")
		if err != nil {
			return err
		}
		select {
		case <-told:
		case <-time.After(length):
		}
		return nil
	case "lookup":
		found, err := net.LookupHost(what)
		fmt.Println(found)
		return err
	case "dial":
		connection, err := net.DialTimeout("tcp", what, 3*time.Second)
		if err == nil {
			fmt.Println("connected to", connection.RemoteAddr())
			err = connection.Close()
		}
		return err
	}
	return fmt.Errorf("pause knows sleep, lookup and dial, not %s", verb)
}
